"""The local backend: sandboxes on one Linux machine by overlayfs, namespaces and cgroups."""
