from holdfast.runtime.cli import app

app()
