# shellcheck shell=sh
# Cosmos-RL divides its nodes: the first one also hosts the controller, the last ones make rollouts.
export COSMOS_CONTROLLER_PORT="${COSMOS_CONTROLLER_PORT:-${controller_port:?}}"
export COSMOS_CONTROLLER_HOST="$MASTER_ADDR:$COSMOS_CONTROLLER_PORT"
export NUM_ROLLOUT_NODES="${NUM_ROLLOUT_NODES:-0}"
export NUM_POLICY_NODES="${NUM_POLICY_NODES:-$((NNODES - NUM_ROLLOUT_NODES))}"
if [ "${SLURM_NODEID:-0}" -lt "$NUM_POLICY_NODES" ]; then COSMOS_ROLE=policy; else COSMOS_ROLE=rollout; fi
if [ "${SLURM_NODEID:-0}" = 0 ]; then COSMOS_CONTROLLER=1; else COSMOS_CONTROLLER=0; fi
export COSMOS_ROLE COSMOS_CONTROLLER
