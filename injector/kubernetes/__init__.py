"""The Kubernetes backend: every sandbox is a Pod, and all state is in the cluster."""
