# Cross-building of the kernels for 64-bit Arm with SVE and SME, to be run under qemu-aarch64. Debian's packages:
#   apt-get install clang-19 lld-19 gcc-12-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
# gcc 12 does not know SME; clang finds the C library and libgcc of the cross gcc by itself.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER clang-19)
set(CMAKE_C_COMPILER_TARGET aarch64-linux-gnu)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-fuse-ld=lld-19 -static")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-fuse-ld=lld-19")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-fuse-ld=lld-19")
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
