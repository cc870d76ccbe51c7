"""A kubelet that runs pods as processes.

The manager watches the pods bound to its node and gives each a pod worker. A worker makes the
pod's volumes, runs its init containers in order and its main containers beside each other, probes
and restarts them, writes the pod's status and, when the pod is deleted, ends them within the grace
period. A container is a process tree below a small shim (`shim.py`) in a user, mount and UTS
namespace of its own: the shim puts the volumes at their mountPaths and writes down the exit code,
so a kubelet that was killed takes its containers over again when it is back.

What differs from a real node: no images are pulled (`images.toml` maps an image's repository to a
command on this machine), root file systems are the machine's own, all pods share the machine's
network and differ by a loopback address, Services are answered by a user-space proxy, and their
names stand in each container's /etc/hosts.
"""
