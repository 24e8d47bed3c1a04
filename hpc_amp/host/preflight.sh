#!/usr/bin/env bash
# preflight.sh FOLDER IMAGE [BIND SOURCE ...] -- COMMAND ...
# The preflight of one node, outside of the container: checks what would prevent the container from
# starting. COMMAND makes the checks in the container (hpc_amp/preflight) and writes a report to FOLDER. If
# it writes none, this script writes one. The exit status is always 0: after another one, mpirun would end
# the tasks on the other nodes before they could report.
set -u
folder=$1
image=$2 # empty without a container
shift 2
node=$(uname -n) # HOSTNAME may be that of the first node
node=${node%%.*}
report=$folder/preflight-$node.json

# json TEXT: escape a text for a JSON string.
json() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  printf '%s' "${text//[[:cntrl:]]/?}"
}

findings=
first=
# finding ID WHAT WHY FIX: add an error of this node.
finding() {
  echo "hpc-amp: preflight: $1: $2 on $node; $4" >&2
  findings+="${findings:+,}
  {\"id\": \"$1\", \"severity\": \"error\", \"what\": \"$(json "$2")\", \"why\": \"$(json "$3")\", \"fix\": \"$(json "$4")\", \"where\": \"$(json "$node")\"}"
  [ -n "$first" ] || first="$1: $2 on $node"
}

# give_up: write the report and exit without starting the container. The report is renamed, so that it is
# always complete.
give_up() {
  printf '{\n "node": "%s",\n "failed": "%s",\n "findings": [%s\n ]\n}\n' \
    "$(json "$node")" "$(json "$first")" "$findings" >"$report.new" && mv "$report.new" "$report"
  exit 0
}

while [ $# -gt 0 ] && [ "$1" != -- ]; do
  # A relative path is relative to the script's working directory, as in the container's `-B`.
  if [ ! -e "$1" ]; then
    finding bind "$1 is to be bound into the container, and does not exist" \
      "a container does not start where a source is missing" \
      "take it out of container.bind (or the site's bind), create it, or leave this node out"
  elif [ -d "$1" ] && ! { [ -r "$1" ] && [ -x "$1" ]; }; then
    finding bind "$1 is to be bound into the container, and may not be read" \
      "a mount changes nothing about permissions" "see ls -ld $1, also of the folders above it"
  fi
  shift
done
shift
if [ -n "$image" ]; then
  [ $# -eq 0 ] || [ -x "$(command -v "$1")" ] || finding rt.found "$1 does not exist" "the container is started with it" \
    "ask for nodes that have it, or for the module that finds it on every node"
  if [ ! -e "$image" ]; then
    finding img.local "the image $image does not exist" "every node starts it by itself" \
      "keep it on a file system that every node sees"
  elif [ ! -r "$image" ]; then
    finding img.local "the image $image may not be read" "every node starts it by itself" \
      "give yourself permission to read it and to enter its folders: namei -l $image"
  fi
elif [ "${1:-}" = env ] && [ -z "$(type -P "$2")" ]; then # no container: containers/none/host.sh
  finding img.python "no Python at $2" "the ranks are started with it" \
    "name one that every node has in container.python"
fi
[ -z "$findings" ] || give_up
[ $# -gt 0 ] || exit 0 # the checks in the container are a separate step

# shellcheck source=outside.sh
source "$(dirname "${BASH_SOURCE[0]}")/outside.sh"
HPC_AMP_OUTSIDE=$(outside_settings)
export HPC_AMP_OUTSIDE
said=$("$@" 2>&1)
status=$?
[ -z "$said" ] || printf '%s\n' "$said" >&2
[ ! -e "$report" ] || exit 0
said=$(sed -e $'s/\x1b\\[[0-9;]*m//g' -e '/^[[:space:]]*$/d' <<<"$said")
if [[ $said =~ hpc-amp:\ preflight:\ ([a-z.]+):\ ([^$'\n']*) ]]; then
  # The checks in the container ran, but could not write the report.
  finding "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "the job writes there" "see above" 2>/dev/null
  give_up
fi
line=$(grep -m 1 -E 'FATAL|rror:' <<<"$said") || line=$(tail -n 1 <<<"$said")
line=${line#FATAL:}
line=${line#"${line%%[![:space:]]*}"}
why="every rank would end like this"
case $line in
  *"architecture"*"could not run on the host"* | *"xec format error"*)
    finding img.arch "the image is for another architecture: $line" "$why" \
      "use an image for the nodes' architecture ($(uname -m))" ;;
  *"o space left on device"*)
    finding tmp "the container does not start, as a file system is full: $line" "$why" \
      "make room, or leave this node out" ;;
  *"executable file not found"* | *"stat /"*": no such file"* | "hpc-amp: this is Python "*)
    finding img.python "the image does not have the Python that is needed: $line" "$why" \
      "name the one to use in container.python, or use an image with Python" ;;
  *)
    finding rt.start "the container does not start (status $status): ${line:-it says nothing}" "$why" \
      "see the lines above; hpc-amp explain knows many of them" ;;
esac
give_up
