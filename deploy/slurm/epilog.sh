#!/bin/sh
# Epilog of SLURM: the job is gone, so is its claim. Exit 0 whatever happens: no node is drained for our sake.
# Settings: gate.conf beside this script.

trap 'exit 0' EXIT
here=${0%/*}
[ -r "$here/gate.sh" ] || exit 0
. "$here/gate.sh"
read_settings "$here/gate.conf"
case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) exit 0 ;; esac
if [ -d "$claims" ] && [ ! -L "$claims" ] && [ -O "$claims" ]; then
    rm -f -- "$claims/$SLURM_JOB_ID" 2>/dev/null
fi
exit 0
