"""Configuration: a TOML file, `ORCHARD_*` variables, flags; and what runs on a state directory."""
