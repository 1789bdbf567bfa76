"""The recording gateway, through which harnesses that are programs reach their model, each in its own API.

A wire (`chat`, `completions`, `responses`, `anthropic`, `gemini`) is a pair of pure functions over
`wire_types`: a request becomes a ProgramRequest, a completion becomes that wire's JSON or its server-sent
events. `routes` maps addresses to wires; `client_tools` has the tools that programs name without a schema.
`recording` stores messages in the attempt's message tree, using `forest` and `call_kinds`, and sends the
model what `upstream` makes of it. `server` gives each attempt an address. docs/gateway.md has the table of
what an upstream cannot be told.
"""
