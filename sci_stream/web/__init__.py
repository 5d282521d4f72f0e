"""The live page: web application, access control, operator controls and the preview encoder."""
