"""llama.cpp's converter in a separate environment: installed on demand, run in a sandbox, removable."""
