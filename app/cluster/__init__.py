"""Models as Ray Serve deployments on several machines. Only these modules import Ray (tessera[cluster])."""
