"""Tasks before their campaigns: read from directories, prompts and plug-ins, proven, registered.

`directories` reads task directories of Harbor and Terminal-Bench, `prompts` rows of prompts, `sources`
what plug-ins bring; `dockerfiles` builds images. `proving` has the means of a proof, `validate` proves
each task by the prover of its domain. `registry` puts tasks into the store, as a blob and events, and
reads them back.
"""
