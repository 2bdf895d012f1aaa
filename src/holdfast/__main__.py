from holdfast.cli import app

app()
