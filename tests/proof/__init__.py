"""Checks of the GPU kernels without a GPU: an emulator, the compilers of both vendors, and facts about CuPy."""
