"""The bundled model: a small real text-to-video model and the drawn world it was trained on."""
