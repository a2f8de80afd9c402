"""The allocator under random programs."""

from allocator_machine import AllocatorMachine
from hypothesis import HealthCheck, settings

AllocatorMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

TestAllocator = AllocatorMachine.TestCase
