"""The web page: what ``dtprof dashboard`` serves. Streamlit is imported only when a page is drawn."""
