"""How many pods a group of engines has: decided from promises, not from how busy an engine looks.

``signals`` reads what each signal says, ``capacity`` what one pod was seen to serve, ``decision``
draws the conclusion: pure, with the time as an argument. ``load`` takes the queue's figures from
the sidecars' readings, ``prometheus`` asks a Prometheus, ``pool_scaler`` brings it together for a
pool.
"""
