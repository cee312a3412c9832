"""An operator graph: asked, cut out, laid out."""
