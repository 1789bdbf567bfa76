"""How the agent makes and enters sandboxes on one Linux machine: overlay root, namespaces, cgroups."""
