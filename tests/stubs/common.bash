# shellcheck shell=bash disable=SC2034
# Sourced by every stub. Finds the state of this stub host, notes the call, and fails if it shall.
name=${0##*/}
state=${0%/*}/../state
[[ -d $state ]] || exit 70
printf '%s\0' "$name" "$@" >"$state/calls/$EPOCHREALTIME-$$"
if [[ -e $state/fail-$name ]]; then
  echo "$name: error: $(<"$state/fail-$name")" >&2
  exit 1
fi

# refuse MESSAGE: what the real program says to a command line that it does not understand.
refuse() {
  echo "$name: error: $1 (stub)" >&2
  exit 1
}
