"""The program that Streamlit runs; in a folder of its own, for a folder ``pages`` beside it has a meaning for Streamlit."""
