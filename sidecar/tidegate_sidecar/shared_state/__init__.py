"""What the pods of a pool know together, in a Redis or Valkey: rate limits, and who was served.

Theory of operation
-------------------
*Limits* (``limits``, ``outbox``, ``limits.lua``): before a request is queued, one script reserves
what it will take from all of its tenant's limits, or from none, on one clock: the server's. What
follows (more tokens than reserved, the true number at its end, a release) is sent from a
background task. Each operation names the reservation and is a no-op where it was done before, so
that one whose answer was lost is simply sent again.

*Service* (``exchange``): pods publish what they gave each tenant while others waited, and count
what they hear (``tidegate.scheduling.peer_service``). Nothing is kept in the server.

*Away* (``store``): a request waits for the server no longer than twice a deadline, 10 ms by default
(``--shared-state-deadline-ms``). Where there is no answer in time, an error, or no server, the pod
counts for itself: from the shared counts as it last heard of them, with each request counted as
often as there are ready pods. What it counted so is added to the shared counts once the server is
back, and what was never answered is undone first: nothing is counted twice, and nothing is lost but
with the server's own data.

In the server stand UIDs of tenants, names of limits and numbers; never a key, a prompt or an
answer. All keys begin with ``tidegate:`` and expire by themselves. A server that evicts keys
forgets limits: it must run with ``maxmemory-policy noeviction``; and with persistence (AOF), if
limits of a month are to survive its own restarts.
"""
