"""The OpenAPI document, made of the schemas, and a page that shows it without fetching anything from elsewhere."""
