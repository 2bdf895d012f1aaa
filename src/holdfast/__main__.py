from holdfast.runtime.cli import run

run()
