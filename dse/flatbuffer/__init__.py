"""Reading, checking, cutting and writing .tflite files."""
