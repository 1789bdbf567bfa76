"""One address for several sandbox services: clusters, or hosts."""
