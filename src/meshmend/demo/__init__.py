"""`meshmend demo`: a real model is trained while its workers are killed, and loses nothing."""

from meshmend.demo.story import demo as demo
