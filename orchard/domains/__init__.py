"""Commands of the built-in domains, and how their rollouts are shown: a package with a record each."""
