#!/bin/bash
# Training on several nodes under Slurm: sbatch configs/slurm.sh [CONFIG [--set a.b=c ...]]
# A job that was stopped goes on from its newest checkpoint: submit it again, with as many nodes as you like, as long as
# the number of ranks divides data.num_streams. Change the lines below to what your cluster has.
#SBATCH --job-name=mmpack
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --output=mmpack-%j.log
set -euo pipefail

CONFIG=${1:-configs/sft_packing.yaml}
shift || true
mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

srun torchrun \
    --nnodes="$SLURM_NNODES" \
    --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" \
    --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-backend=c10d \
    --rdzv-endpoint="${NODES[0]}:29500" \
    --no-python \
    mmpack train "$CONFIG" --set train.resume_if_exists=true "$@"
