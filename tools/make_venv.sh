#!/bin/sh
# Make a virtual environment with pip in it: make_venv.sh PYTHON DIRECTORY
#
# Three ways, since distributions split Python up: the venv module; the venv module without its bundled pip, filled by
# the pip that PYTHON has; virtualenv, fetched by that pip. An environment that already works is left alone.
set -eu
python=$1
directory=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT

works() { "$directory/bin/python" -m pip --version >/dev/null 2>&1; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    found=$("$python" --version 2>/dev/null) || found=missing
    echo "Trivium needs Python 3.11 or newer; '$python' is $found." >&2
    echo "Name another one: make PYTHON=/path/to/python3.11" >&2
    exit 1
fi
works && exit 0

by_venv() { "$python" -m venv "$directory"; }
by_pip() { "$python" -m venv --without-pip "$directory" && "$python" -m pip --python "$directory/bin/python" install pip; }
by_virtualenv() {
    "$python" -m pip install --target "$directory.virtualenv" virtualenv &&
        PYTHONPATH="$directory.virtualenv" "$python" -m virtualenv "$directory" &&
        rm -rf "$directory.virtualenv"
}

for way in by_venv by_pip by_virtualenv; do
    rm -rf "$directory"
    if $way >>"$log" 2>&1 && works; then
        exit 0
    fi
done
cat "$log" >&2
echo "No virtual environment could be made with '$python': it has neither a whole venv module nor pip." >&2
exit 1
