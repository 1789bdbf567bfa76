"""The sandbox service on a cluster: every sandbox is a Pod, and the cluster is the only memory."""
