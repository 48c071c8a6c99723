"""Models as deployments of Ray Serve over several machines. Only these modules import Ray (tessera[cluster])."""
