"""CPU and CUDA: devices, backends, and what each library needs patched."""
