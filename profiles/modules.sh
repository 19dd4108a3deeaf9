# Example of `machine.prologue`: loads the modules of a site before the command of every rule. Copy and adapt it.
# Shells of jobs are not interactive: if `module` is undefined, source its file first (Lmod: lmod.sh).
if ! command -v module > /dev/null; then source /etc/profile.d/modules.sh; fi
module purge
module load gcc openmpi
# Some versions of `module` succeed even if a module is missing. Check for the required commands.
command -v mpiexec
export DITHC_MPIEXEC="$(command -v mpiexec)"
