#!/usr/bin/env bash
# The executor's stand-alone check under the thread sanitizer. Argument: the environment's bin folder.
set -euo pipefail

bin=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
work="$root/build/tsan"
cd "$root"

"$bin/cmake" -S . -B "$work" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEADRACE_CHECK_ONLY=ON -DHEADRACE_SANITIZE_THREADS=ON \
    -DCMAKE_MAKE_PROGRAM="$bin/ninja" --log-level=WARNING
"$bin/cmake" --build "$work" --target executor_check

# Newer kernels place memory where an older sanitizer does not expect it.
run=()
setarch -R true 2>/dev/null && run=(setarch -R)
export TSAN_OPTIONS=halt_on_error=1
if report=$("${run[@]}" "$work/executor_check" race 2>&1) || ! grep -q "ThreadSanitizer: data race" <<<"$report"; then
    echo "make tsan: the planted race was not reported: this run would prove nothing" >&2
    exit 1
fi
echo "planted race: reported"
"${run[@]}" "$work/executor_check"
