#!/usr/bin/env bash
# Start a real Slurm on this machine, for tests: munge, slurmctld and slurmd in FOLDER, two partitions.
# `high` preempts `low` by requeueing; memory is limited by cgroups if they are writable.
# Needs root and Debian. Usage: scripts/start_slurm.sh FOLDER; then `export SLURM_CONF=FOLDER/slurm.conf`.
# scripts/stop_slurm.sh FOLDER ends it.
set -euo pipefail
folder=$(mkdir -p "${1:?usage: start_slurm.sh FOLDER}" && cd "$1" && pwd)
here=$(dirname "$(readlink -f "$0")")

if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge >/dev/null
fi
"$here/stop_slurm.sh" "$folder"

# munge: a separate key, so that system services are not affected
mkdir -p "$folder"/{state,spool,munge}
chmod 755 "$folder" && chmod 700 "$folder/munge"
head -c 1024 /dev/urandom >"$folder/munge/key" && chmod 400 "$folder/munge/key"
munged --force --key-file="$folder/munge/key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munge/seed"

host=$(hostname -s)
cpus=$(env -u OMP_NUM_THREADS nproc) # which it limits
memory=$(slurmd -C | sed -n 's/.*RealMemory=\([0-9]*\).*/\1/p')
confine=task/none
track=proctrack/linuxproc
if [ -w /sys/fs/cgroup/memory ] && [ -w /sys/fs/cgroup/freezer ]; then
    confine=task/cgroup track=proctrack/cgroup
fi
cat >"$folder/cgroup.conf" <<CONF
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
CONF
cat >"$folder/slurm.conf" <<CONF
ClusterName=cab
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
MpiDefault=none
ReturnToService=2
ProctrackType=$track
TaskPlugin=$confine
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=2
MinJobAge=600
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=low Nodes=$host Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=10 DefMemPerCPU=2000
PartitionName=high Nodes=$host MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF DefMemPerCPU=2000
CONF
export SLURM_CONF=$folder/slurm.conf
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF"
for _ in $(seq 60); do
    [ "$(sinfo --noheader --format=%T --partition=low 2>/dev/null)" = idle ] && exit 0
    sleep 0.5
done
echo "Slurm did not start; see the logs in $folder" >&2
exit 1
