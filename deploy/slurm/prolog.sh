#!/bin/sh
# Prolog of SLURM: may this job start here? Exit 0: yes. Exit 1: a part that the job would get is known to be broken, and
# the agent has a permit to close the gate; SLURM drains the node, and the job runs elsewhere.
#
# It reads the state file that nodevet agent writes, never talks to the controller, and never waits but, bounded, for the
# agent: until its own load is gone, until it has told SLURM why the node drains, or until it has seen that a person
# resumed the node. A job that just starts costs no
# other program. What is decided goes into gate.log.
# Settings: gate.conf beside this script. How to install it: slurm.conf.fragment.

# Whatever ends this script early, such as a file of it that is being copied at this moment, drains no node.
decided=
trap '[ -n "$decided" ] || { echo "nodevet: $0 ended early: the gate stays open" >&2; exit 0; }' EXIT

here=${0%/*}
if [ ! -r "$here/gate.sh" ] || [ ! -r "$here/gres.sh" ]; then
    echo "nodevet: gate.sh or gres.sh is missing beside $0: the gate stays open" >&2
    decided=yes
    exit 0
fi
. "$here/gate.sh"
. "$here/gres.sh"

# Leave with the decision $1 for the reason $2: every way out of this script.
decide() {
    case $1 in
    closed | *_closed)
        read_below_end "$here/gate.conf"
        if [ "$mode" != gate ]; then
            set -- observed "$2"
        fi
        ;;
    esac
    [ -z "$slip" ] || set -- "$1" "$2 (gate.conf: not understood: $slip)"
    log_decision "$1" "$2" || echo "nodevet: $1: $2 (not counted: $runtime_dir/gate.log cannot be written)" >&2
    case $1 in
    closed | *_closed)
        echo "nodevet: $2" >&2
        case $1 in closed | refused_closed) [ "$answer" = drained ] || wait_for_drain ;; esac
        # This job does not start here, so its claim would stand in the way of nothing.
        [ -z "$claim" ] || rm -f -- "$claim"
        decided=yes
        exit 1
        ;;
    esac
    # The job starts: it waits for nothing any more.
    [ -z "$asked" ] || [ -z "$claim" ] || { true >"$claim"; } 2>/dev/null
    decided=yes
    exit 0
}

# A fault would close the gate with the decision $1 and the words $2. Where the agent believes that SLURM has drained
# this node, no prolog should run here: somebody has resumed it, or this job was allocated a moment before. A person's
# word counts more than ours, so the agent is asked to look, and without an answer the job starts.
close_unless_resumed() {
    if [ "$agent" = drained ] && [ "$mode" = gate ]; then
        [ -n "$asked" ] || ! ask_agent || return 0
        [ "$answer" = drained ] ||
            decide resumed "the agent reports this node as drained and has not queried SLURM since: $2"
    fi
    decide "$1" "$2"
}

# Have the agent look into SLURM: a word in the claim tells it that a job waits. Status 0: it says something else now.
# Status 1: it stays by its fault; `answer` is `drained` where it has looked, and the node is drained after all.
ask_agent() {
    asked=yes
    [ -z "$claim" ] || { echo closed >"$claim"; } 2>/dev/null
    begin_wait
    while [ -n "$fault$refusal" ] && waits; do
        { read -r answer <"$claim"; } 2>/dev/null
        [ "$answer" != drained ] || return 1
        sleep 0.05 2>/dev/null || sleep 1
        read_verdict || return 0
    done
    [ -z "$fault$refusal" ]
}

# Let the agent drain the node first, where it is about to: SLURM keeps the reason of a node that is draining already,
# and writes "Prolog error" at any other.
wait_for_drain() {
    [ "$agent" = draining ] || return
    [ -z "$claim" ] || { echo closed >"$claim"; } 2>/dev/null
    begin_wait
    while [ "$agent" = draining ] && waits; do
        sleep 0.05 2>/dev/null || sleep 1
        read_verdict || return
    done
}

# Let the agent get the permit to close the gate first, where it is asking SLURM for it. Where it has drained the node
# meanwhile it has looked since this job came: nobody resumed the node.
wait_for_permit() {
    waited=yes
    begin_wait
    while [ -n "$unpermitted" ] && [ "$agent" = draining ] && waits; do
        sleep 0.05 2>/dev/null || sleep 1
        read_verdict || return
    done
    [ "$agent" != drained ] || asked=yes answer=drained
}

# Begin to wait for the agent, in all at most drain_wait_seconds and only while what it says is up to date.
begin_wait() {
    [ -z "$since" ] || return
    read_uptime
    since=$hundredths
}

waits() {
    [ "$seconds" -lt "$fresh" ] && [ "$((hundredths - since))" -lt "$((drain_wait_seconds * 100))" ]
}

# Leave as the site wants where the question cannot be answered: $1 is what is missing.
undecided() {
    if [ "$on_stale" = fail ]; then
        decide "${1}_closed" "$2"
    fi
    [ -z "$unpermitted" ] || decide unpermitted "$unpermitted"
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
job=${SLURM_JOB_ID:-} asked='' answer='' waited='' since=''
write_claim
conf=${SLURM_CONF:-/etc/slurm/slurm.conf}
wanted_gpus "${SLURM_JOB_GPUS:-}" "${conf%/*}/gres.conf" "${SLURMD_NODENAME:-}"

while :; do
    read_verdict || undecided no_verdict "$doubt"
    if [ -n "$fault" ]; then
        close_unless_resumed closed "$fault"
        continue
    fi
    if [ -n "$refusal" ]; then
        [ "$on_driver_refusal" = fail ] || decide refused_open "$refusal"
        close_unless_resumed refused_closed "$refusal"
        continue
    fi
    if [ -n "$unpermitted" ] && [ "$agent" = draining ] && [ "$mode" = gate ] && [ -z "$waited$foreign" ]; then
        wait_for_permit
        continue
    fi
    [ "$load" = probing ] || break
    [ "$seconds" -lt "$fresh" ] || undecided no_verdict "$doubt"
    read_uptime
    [ "$((hundredths - began))" -lt "$((probe_wait_seconds * 100))" ] ||
        undecided probing "a probe or burn-in of nodevet still runs after $probe_wait_seconds s"
    sleep 0.05 2>/dev/null || sleep 1
done
[ -z "$doubt" ] || undecided no_verdict "$doubt"
[ -n "$claim" ] || undecided no_claim "$claims/$job cannot be written"
[ -z "$unpermitted" ] || decide unpermitted "$unpermitted"
decide open "generation $generation"
