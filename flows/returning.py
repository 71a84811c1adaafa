"""The flow `return_instances`: what `prefect-tao brev sweep` does, for a schedule.

Prefect builds the form of a deployment from the signature and the docstring, so annotations are not postponed here.
"""

from prefect import flow, get_run_logger

from prefect_tao.jobs.errors import InvalidInput, TaoError
from prefect_tao.platforms.brev.driver import BrevPlatform
from prefect_tao.platforms.brev.leftovers import give_back, leftovers
from prefect_tao.tasks.targets.opening import open_apart


@flow(name="return-instances", flow_run_name="return instances of {target}")
async def return_instances(target: str = "brev") -> list[str]:
    """Delete the instances that were made for jobs of a target, once the job is over or no launch can go on.

    What runs, what is being launched and what others have made is left alone.

    Args:
        target: The block whose instances are meant, such as brev/spot.
    """
    logger = get_run_logger()
    platform = await open_apart(target)
    try:
        if not isinstance(platform, BrevPlatform):
            raise InvalidInput(f"{target} rents no instances of Brev", "name a target such as brev/spot")
        deleted, faults = [], []
        for one in await leftovers(platform):
            logger.info("%s %s: %s", one.instance, one.status, one.why)
            if not one.may_go:
                continue
            try:
                await give_back(platform, one)
                deleted.append(one.instance)
            except TaoError as error:  # one that cannot be deleted now keeps no other
                faults.append(error)
        if faults:
            raise faults[0]
        return deleted
    finally:
        await platform.close()
