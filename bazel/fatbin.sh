#!/usr/bin/env bash
# Compiles CUDA kernels to a fatbin: fatbin.sh NVCC PTXAS OPTIONS SOURCE OUT
#
# Code that CUDA 13 assembled loads on drivers from R580 on. With a PTXAS of CUDA 12 it loads from R525 on: nvcc goes as far
# as PTX, whose version line is set to that of CUDA 12.8, and that ptxas, which refuses what its version does not have, does
# the rest. The mode of compression is the one that all those drivers know. PTXAS "": nvcc does it all.
set -euo pipefail

nvcc="$1" ptxas="$2" options="$3" source="$4" out="$5"
if [[ -z "$ptxas" ]]; then
  exec "$nvcc" --options-file "$options" -I. -fatbin -o "$out" "$source"
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
images=()
while read -r arch; do
  grep -Ev 'gencode|Xfatbin' "$options" >"$work/options"
  "$nvcc" --options-file "$work/options" -I. "-arch=compute_$arch" -ptx -o "$work/$arch.ptx" "$source"
  sed -i 's/^\.version .*/.version 8.7/' "$work/$arch.ptx"
  "$ptxas" --verbose --warning-as-error --fmad false "-arch=sm_$arch" -o "$work/$arch.cubin" "$work/$arch.ptx" \
    2>"$work/report" || { cat "$work/report" >&2; exit 1; }
  # A few words are the assembler's own choice.
  awk -v arch="$arch" '
    /Function properties for/ { kernel = $NF }
    /bytes stack frame/ && $1 > 128 {
      print "sm_" arch ": " kernel " keeps " $1 " bytes of each thread in memory instead of registers; at most 128" >"/dev/stderr"
      bad = 1
    }
    END { exit bad }' "$work/report"
  images+=("--image3=kind=elf,sm=$arch,file=$work/$arch.cubin")
done < <(sed -n 's/.*arch=compute_\([0-9]*\),.*/\1/p' "$options")
images+=("--image3=kind=ptx,sm=90,file=$work/90.ptx")
"$(dirname "$nvcc")/fatbinary" --create="$out" -64 --compress-all --compress-mode=speed "${images[@]}"
