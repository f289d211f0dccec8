from gsparse.kernels.cpu.threads import get_num_threads, set_num_threads
