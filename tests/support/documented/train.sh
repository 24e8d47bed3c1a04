#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --comment=a#b
#SBATCH --time=12:00:00

module load python
source venv/bin/activate

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
export MASTER_PORT=$((61000 + SLURM_JOB_ID % 4536))
export RANK=$SLURM_PROCID
export WORLD_SIZE=$SLURM_NTASKS

srun python train.py
