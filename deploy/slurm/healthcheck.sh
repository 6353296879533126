#!/bin/sh
# HealthCheckProgram of SLURM: says what the state file says. Exit 0: fit. 1: failed by a hard fault. 3: no verdict.
#
# To SLURM the exit code means nothing: it is a line in slurmd's log. Draining is the business of nodevet itself, and
# jobs are kept away by prolog.sh. What it does for SLURM: while the machine is young it waits, bounded, until the agent
# has judged for the first time since boot, and so long slurmd does not register the node.
# It never talks to the controller. Settings: gate.conf beside this script.

here=${0%/*}
if [ ! -r "$here/gate.sh" ]; then
    echo "nodevet: gate.sh is missing beside $0" >&2
    exit 3
fi
. "$here/gate.sh"
read_settings "$here/gate.conf"
read_uptime
began=$seconds wanted=all order=minor

while :; do
    if read_verdict && [ "$agent" != starting ]; then
        break
    fi
    read_uptime
    if [ "$seconds" -ge "$boot_window_seconds" ] || [ "$((seconds - began))" -ge "$boot_wait_seconds" ]; then
        break
    fi
    sleep 1
done

fault=${fault:-${refusal:-$unpermitted}}
if [ -n "$fault" ]; then
    echo "nodevet: $fault"
    exit 1
fi
[ "${node_verdict:-}" != unknown ] || doubt=${doubt:-$node_reason}
if [ -n "$doubt" ]; then
    echo "nodevet: no verdict: $doubt"
    exit 3
fi
echo "nodevet: $node_verdict: $node_reason"
exit 0
