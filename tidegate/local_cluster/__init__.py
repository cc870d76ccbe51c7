"""A real control plane and a kubelet that runs pods as processes."""
