#!/usr/bin/env bash
# Pillow 12.2.0 and 13.0.0: one picture resized to one size by BICUBIC has other pixels.
#
# Guess before the run: `Image.resize` of 8-bit pixels is one fixed integer computation, so any Pillow
# gives a vision model the same input. Only torchvision's resize was known to differ.
#
# Seen: Pillow 12 resizes the width first, always. Pillow 13 resizes the height first if the height
# shrinks by more than twice the width's factor. Each pass rounds to 8 bits, so the orders differ:
# here by up to 6 levels of 255, in a quarter of the values. The other shapes are equal to the byte.
#
# What follows: a tall screenshot has other patches behind another Pillow, so other embeddings. Pin
# Pillow where answers are compared, and name its version where two nodes share embeddings.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/resize.py" <<'PYTHON'
import hashlib
import sys

from PIL import Image

size = tuple(map(int, sys.argv[1:3]))
target = tuple(map(int, sys.argv[3:5]))
noise = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(size[0] * size[1] * 3 // 32 + 1))
picture = Image.frombytes("RGB", size, noise[: size[0] * size[1] * 3])
sys.stdout.buffer.write(picture.resize(target, Image.Resampling.BICUBIC).tobytes())
PYTHON
for version in 12.2.0 13.0.0; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -q "pillow==$version"
done
resized() { "$folder/$1/bin/python" "$folder/resize.py" "${@:2}"; }
compared() {
  resized 12.2.0 "$@" >"$folder/old"
  resized 13.0.0 "$@" >"$folder/new"
  python3 - "$folder/old" "$folder/new" <<'PYTHON'
import sys

old, new = (open(name, "rb").read() for name in sys.argv[1:])
differences = [abs(a - b) for a, b in zip(old, new, strict=True)]
print(max(differences), round(sum(map(bool, differences)) / len(differences), 2))
PYTHON
}
equal=$(compared 200 150 160 128)
wide=$(compared 900 100 160 96)
tall=$(compared 100 900 96 160)
echo "largest difference in levels of 255, and share of values that differ"
echo "200x150 to 160x128: $equal"
echo "900x100 to 160x96:  $wide"
echo "100x900 to 96x160:  $tall"
[ "$equal; $wide; $tall" = "0 0.0; 0 0.0; 6 0.26" ]
