"""Every record that crosses a room, a wire or a restart, defined once.

`msgspec` structs and pure functions over them, nothing else: no I/O, no imports of other rooms. JSON Schema
and AsyncAPI documents are generated from these definitions.
"""
