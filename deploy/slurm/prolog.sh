#!/bin/sh
# Prolog of SLURM: may this job start here? Exit 0: yes. Exit 1: a part that the job would get is known to be broken;
# SLURM drains the node, and the job runs elsewhere.
#
# It reads the state file that nodevet agent writes, never talks to the controller, and never waits but, bounded, for the
# agent: until its own load is gone, or until it has told SLURM why the node drains. A job that just starts costs no
# other program. What is decided goes into gate.log.
# Settings: gate.conf beside this script. How to install it: slurm.conf.fragment.

here=${0%/*}
if [ ! -r "$here/gate.sh" ] || [ ! -r "$here/gres.sh" ]; then
    echo "nodevet: gate.sh and gres.sh must lie beside $0: the gate stays open" >&2
    exit 0
fi
. "$here/gate.sh"
. "$here/gres.sh"

# Leave with the decision $1 for the reason $2: every way out of this script.
decide() {
    case $1 in
    closed | *_closed)
        if [ "$mode" = observe ]; then
            set -- observed "$2"
        fi
        ;;
    esac
    [ -z "$slip" ] || set -- "$1" "$2 (gate.conf: not understood: $slip)"
    log_decision "$1" "$2"
    case $1 in
    closed | *_closed)
        echo "nodevet: $2" >&2
        [ "$1" != closed ] || wait_for_drain
        # This job does not start here, so its claim would stand in the way of nothing.
        [ -z "$claim" ] || rm -f -- "$claim"
        exit 1
        ;;
    esac
    exit 0
}

# Let the agent drain the node first, where it is about to: SLURM keeps the reason of a node that is draining already,
# and writes "Prolog error" at any other. What stands in the claim tells the agent that a job waits.
wait_for_drain() {
    [ "$agent" = draining ] || return
    [ -z "$claim" ] || { echo closed >"$claim"; } 2>/dev/null
    read_uptime
    began=$hundredths
    while [ "$agent" = draining ] && [ "$seconds" -lt "$fresh" ] &&
        [ "$((hundredths - began))" -lt "$((drain_wait_seconds * 100))" ]; do
        sleep 0.05 2>/dev/null || sleep 1
        read_verdict || return
    done
}

# Leave as the site wants where the question cannot be answered: $1 is what is missing.
undecided() {
    if [ "$on_stale" = fail ]; then
        decide "${1}_closed" "$2"
    fi
    decide "${1}_open" "$2"
}

# Tell the agent that a job is here, before its state is read: a load that it has not published yet will not start.
write_claim() {
    claim=
    case $job in '' | *[!0-9]* | ????????????????????*) job=- && return 1 ;; esac
    [ -d "$claims" ] && [ ! -L "$claims" ] && [ -O "$claims" ] && [ ! -L "$claims/$job" ] || return 1
    { true >"$claims/$job"; } 2>/dev/null || return 1
    claim=$claims/$job
}

read_settings "$here/gate.conf"
read_uptime
began=$hundredths
job=${SLURM_JOB_ID:-}
write_claim
conf=${SLURM_CONF:-/etc/slurm/slurm.conf}
wanted_gpus "${SLURM_JOB_GPUS:-}" "${conf%/*}/gres.conf" "${SLURMD_NODENAME:-}"

while :; do
    read_verdict || undecided no_verdict "$doubt"
    [ -z "$fault" ] || decide closed "$fault"
    [ "$load" = probing ] || break
    [ "$seconds" -lt "$fresh" ] || undecided no_verdict "$doubt"
    read_uptime
    [ "$((hundredths - began))" -lt "$((probe_wait_seconds * 100))" ] ||
        undecided probing "a load of nodevet still runs after $probe_wait_seconds s"
    sleep 0.05 2>/dev/null || sleep 1
done
[ -z "$doubt" ] || undecided no_verdict "$doubt"
[ -n "$claim" ] || undecided no_claim "$claims/$job cannot be written"
decide open "generation $generation"
