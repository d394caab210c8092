"""Charts and pages that need nothing besides: SVG and HTML, light or dark."""
